"""The environment variables that GeoMX reads: where one is set, it is told what to write instead.

A run's description says all of this, so that every node says the same.
"""

from __future__ import annotations

from collections.abc import Mapping

from geomx.errors import ConfigError, Fault

_NOTHING = "nothing"
INSTEAD: dict[str, str] = {
    "DMLC_ROLE": "geomx serve --role local, geomx worker",
    "DMLC_ROLE_GLOBAL": "geomx serve --role global",
    "DMLC_ROLE_MASTER_WORKER": _NOTHING,
    "DMLC_PS_ROOT_URI": "party.address",
    "DMLC_PS_ROOT_PORT": "party.address",
    "DMLC_PS_GLOBAL_ROOT_URI": "global.addresses",
    "DMLC_PS_GLOBAL_ROOT_PORT": "global.addresses",
    "DMLC_NUM_WORKER": "party.workers",
    "DMLC_NUM_SERVER": 'lan.overlay = "ps"',
    "DMLC_NUM_GLOBAL_SERVER": "run.shards",
    "DMLC_NUM_GLOBAL_WORKER": _NOTHING,
    "DMLC_NUM_ALL_WORKER": _NOTHING,
    "DMLC_ENABLE_CENTRAL_WORKER": "a [[party]] for the central site",
    "DMLC_RANK": "geomx worker --rank",
    "DMLC_INTERFACE": "global.listen, party.listen",
    "DMLC_NODE_HOST": "global.listen, party.listen",
    "DMLC_LOCAL": _NOTHING,
    "DMLC_USE_KUBERNETES": _NOTHING,
    "MXNET_KVSTORE_USE_HFA": 'sync.policy = "hfa k1=20 k2=10"',
    "MXNET_KVSTORE_HFA_K1": "k1 of the policy `hfa`",
    "MXNET_KVSTORE_HFA_K2": "k2 of the policy `hfa`",
    "MXNET_KVSTORE_SIZE_LOWER_BOUND": "size_lower_bound of the codec",
    "MXNET_KVSTORE_BIGARRAY_BOUND": "layout.slice_elements",
    "ENABLE_P3": 'worker.overlap = "forward"',
    "ENABLE_DGT": 'wan.channel = "dgt"',
    "DMLC_K": "k of the channel `dgt`",
    "DMLC_K_MIN": "k_least of the channel `dgt`",
    "ADAPTIVE_K_FLAG": "adaptive of the channel `dgt`",
    "DMLC_UDP_CHANNEL_NUM": "channels of the channel `dgt`",
    "DGT_CONTRI_ALPHA": "alpha of the channel `dgt`",
    "DGT_BLOCK_SIZE": _NOTHING,
    "DGT_INFO": _NOTHING,
    "ENABLE_INTRA_TS": 'lan.overlay = "ts"',
    "ENABLE_INTER_TS": 'run.overlay = "ts"',
    "MAX_GREED_RATE_TS": "greed of the overlay `ts`",
    "PS_HEARTBEAT_INTERVAL": "heartbeat_s in [wan] and [lan]",
    "PS_HEARTBEAT_TIMEOUT": "timeout_s in [wan] and [lan]",
    "PS_RESEND": _NOTHING,
    "PS_RESEND_TIMEOUT": _NOTHING,
    "PS_DROP_MSG": "wan.link = { loss = 0.01 }",
    "PS_VERBOSE": _NOTHING,
}


def check(environment: Mapping[str, str]) -> None:
    """Raise `ConfigError` that names those which are set, each with what says so here."""
    faults = [
        Fault(name, f"`{environment[name]}`", "not set", _hint(instead))
        for name, instead in INSTEAD.items()
        if name in environment
    ]
    if faults:
        raise ConfigError("the environment of GeoMX, in place of which a run has its description", faults)


def _hint(instead: str) -> str:
    return "it has no meaning here" if instead == _NOTHING else f"write {instead}"
