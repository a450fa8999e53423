"""What this room adds to rlstack, see :mod:`rlstack.config.rooms`."""

HOOKS = {"signs": "rlstack.diagnostics.signs:LearningSigns.of"}
