"""Everything worth knowing of a GPU in one command: ``python -m experiments.gpu``."""
