"""What this room adds to rlstack, see :mod:`rlstack.config.rooms`."""

from rlstack.config.rooms import Kind

_ROOM = "rlstack.adapters"

KINDS = {
    "marinenav": Kind(f"{_ROOM}.marinenav.agents:published_policy", ("agent_type",), f"{_ROOM}.marinenav.agents"),
    "sb3": Kind(f"{_ROOM}.sb3.native:sb3_policy", ("vecnormalize", "deterministic"), f"{_ROOM}.sb3.native"),
    "arena": Kind(
        f"{_ROOM}.arena.agents:arena_policy",
        ("normalization", "deterministic"),
        f"{_ROOM}.arena.agents",
        export=f"{_ROOM}.arena.agents:export_run",
    ),
    "torchscript": Kind(f"{_ROOM}.scripted:torchscript_policy"),
    "onnx": Kind(f"{_ROOM}.scripted:onnx_policy"),
    "callable": Kind(f"{_ROOM}.protocols:callable_policy", ("protocol", "batched", "arrays")),
}
ALGORITHMS = {
    "ppo_published": f"{_ROOM}.arena.agents:PublishedPPO",
    "sac_published": f"{_ROOM}.marinenav.agents:PublishedSAC",
    "rainbow_published": f"{_ROOM}.marinenav.agents:PublishedRainbow",
}
RECORDINGS = {"timesteps.npy": f"{_ROOM}.marinenav.evaluations:demonstrations"}
