"""What users open and hold: universes, worlds, and processes that host them."""
