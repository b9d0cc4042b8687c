"""Messages to worlds of other universes and stores, and who may send them."""
