"""Galleries and films on the page."""

from collections.abc import Mapping, Sequence
from html import escape

from samplr.report.contents import Portrait, WorldContents
from samplr.report.gallery import Curriculum, Shown


def levels_section(contents: WorldContents) -> str:
    """The levels every curriculum ended on, after some from the ground truth."""
    drawn = contents.draws[0].picture is not None
    parts = [
        "<h3>Levels</h3>",
        '<p class="note">Levels at their start'
        + (", with what the agent cannot see." if drawn else "; this world draws no pictures.")
        + "</p>",
        "<h4>The ground truth</h4>",
        '<p class="note">Fresh draws: what the agent will meet when it is deployed.</p>',
        _gallery([(level, "a draw from the ground truth") for level in contents.draws]),
        *(_of_method(portrait) for portrait in contents.portraits),
    ]
    return "\n".join(parts)


def _of_method(portrait: Portrait) -> str:
    title = escape(portrait.method.title)
    if not portrait.curricula:
        keeps = portrait.method.config.replays
        why = "There is no room for its levels on this page." if keeps else "Every level is a fresh draw; none is kept."
        return f'<h4>{title}</h4><p class="note">{why}</p>'
    first, *others = portrait.curricula
    parts = [f"<h4>{title}: the levels its curriculum ended on</h4>", _of_seed(portrait, first)]
    if others:
        name = f"The other {len(others)} seeds" if len(others) > 1 else "The other seed"
        rest = "".join(_of_seed(portrait, other) for other in others)
        parts.append(f"<details><summary>{name}</summary>{rest}</details>")
    return "\n".join(parts)


def _of_seed(portrait: Portrait, curriculum: Curriculum) -> str:
    means = ", ".join(_fact(name, value) for name, value in curriculum.means.items())
    about = f"Seed {curriculum.seed} keeps {curriculum.kept} levels; the likeliest to be replayed come first."
    about += f" The mean over all of them, by replay weight: {means}." if means else ""
    alt = f"a level that {portrait.method.title}, seed {curriculum.seed}, ended on"
    shown = [(level, f"{alt}, number {i}") for i, level in enumerate(curriculum.shown, start=1)]
    return f'<p class="note">{escape(about)}</p>{_gallery(shown)}'


def _gallery(levels: Sequence[tuple[Shown, str]]) -> str:
    kind = "gallery wide" if any(level.picture and _is_flat(level.picture) for level, _ in levels) else "gallery"
    return f'<ul class="{kind}">{"".join(_item(level, alt) for level, alt in levels)}</ul>'


def _item(level: Shown, alt: str) -> str:
    facts = _facts(level.facts)
    caption = [facts] if facts else []
    if level.score is not None:
        caption.append(f"score {level.score:.3g}")
    if level.weight is not None:
        caption.append(f"replayed with {level.weight:.1%}")
    image = ""
    if level.picture:
        flat = ' class="flat"' if _is_flat(level.picture) else ""
        words = escape(f"{alt}: {facts}" if facts else alt)
        image = f'<img{flat} src="{level.picture}" alt="{words}">'
    return f"<li><figure>{image}<figcaption>{escape(' · '.join(caption))}</figcaption></figure></li>"


def _is_flat(picture: str) -> bool:
    """Whether a picture is small and made of a few colours, to be enlarged without blurring it."""
    return picture.startswith("data:image/png")


def _facts(facts: Mapping[str, float]) -> str:
    return ", ".join(_fact(name, value) for name, value in facts.items())


def _fact(name: str, value: float) -> str:
    return f"{name.replace('_', ' ')} {value:.2g}"


def films_section(contents: WorldContents) -> str:
    """A film of the first seed of every method, all on the same level."""
    films = [(portrait.method, portrait.film) for portrait in contents.portraits if portrait.film]
    if not films:
        return ""
    items = [
        f'<li><figure><video controls muted loop playsinline preload="metadata" width="{film.width}" '
        f'height="{film.height}" poster="{film.poster}" src="{film.uri}" '
        f'aria-label="{escape(f"{method.title}, seed {method.seeds[0]}, plays a level")}"></video>'
        f"<figcaption>{escape(method.title)}, seed {method.seeds[0]}</figcaption></figure></li>"
        for method, film in films
    ]
    about = (
        "The first seconds of the first seed of every method, on the first of the levels from the ground truth above."
    )
    return f'<h3>Films</h3><p class="note">{about}</p><ul class="gallery wide">{"".join(items)}</ul>'
