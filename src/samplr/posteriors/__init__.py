"""Posteriors P̄(θ′|τ): exact ones by conjugacy and enumeration, learned ones, and priors known or estimated online.

Here are the exact ones, which worlds are written with. `learned` and `priors` are for where the truth is not known,
`beliefs` trains them alongside the student, and `calibration` tells how good a posterior is.
"""

from samplr.posteriors.exact import Belief as Belief
from samplr.posteriors.exact import BernoulliEvidence as BernoulliEvidence
from samplr.posteriors.exact import BernoulliField as BernoulliField
from samplr.posteriors.exact import BetaBernoulli as BetaBernoulli
from samplr.posteriors.exact import Enumerated as Enumerated
from samplr.posteriors.exact import Posterior as Posterior
