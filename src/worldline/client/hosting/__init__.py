"""A process that hosts many universes."""
