"""The frozen records that both legs of the system share. Pure."""
