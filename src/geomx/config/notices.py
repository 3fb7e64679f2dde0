"""What a description asks for, may have, and gets in some places only: told, and no fault."""

from __future__ import annotations

from geomx.config.problems import shown
from geomx.config.run import Run
from geomx.sync import policies
from geomx.sync.contract import LocalStep, Policy

STEPS_ASKED = 1 << 14  # of a policy, for a mean inside a party
NO_CODEC_OF_ITS_OWN = ("dense", "wan")


def notices(run: Run) -> list[str]:
    """Sentences, without a full stop, about a description whose choices have been checked (`load_whole`)."""
    named = [
        f"{key} = {shown(spec)}"
        for key, spec in (("lan.codec_up", run.lan.codec_up), ("lan.codec_down", run.lan.codec_down))
        if spec not in NO_CODEC_OF_ITS_OWN
    ]
    by_server = any(party.workers > 1 and party.inside == "server" for party in run.parties)
    if not (named and by_server and _has_party_means(policies.make(run.sync.policy))):
        return []
    applies = "apply" if len(named) > 1 else "applies"
    return [
        f"with sync.policy = {shown(run.sync.policy)} the means inside a party are sent dense, since they are means of "
        f"weights; {' and '.join(named)} {applies} to exchanges with the global servers only"
    ]


def _has_party_means(policy: Policy) -> bool:
    return policy.plans is LocalStep and any(_is_party_mean(policy, step) for step in range(STEPS_ASKED))


def _is_party_mean(policy: Policy, step: int) -> bool:
    plan = policy.step(step)
    return isinstance(plan, LocalStep) and plan.average == "party"
