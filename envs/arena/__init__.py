"""Arena, a batched shooter: a ship must destroy the spawners of five phases before their enemies destroy it."""
