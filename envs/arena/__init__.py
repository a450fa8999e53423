"""Arena, a batched shooter: destroy the spawners of five phases before the enemies they make destroy you."""
