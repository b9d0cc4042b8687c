"""What goes wrong: with the store, its clock and objects; where, how often, and guards that are switched off."""
