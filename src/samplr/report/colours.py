"""The colours of the methods in every figure: Okabe and Ito's, which people with any colour vision can tell apart."""

COLOURS = {
    "dr": "#0072B2",
    "robust_plr": "#D55E00",
    "naive": "#56B4E9",
    "samplr": "#009E73",
    "samplr_exact": "#CC79A7",
}
GREY = "#555555"
