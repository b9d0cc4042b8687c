"""Personal values, as clients send, read and erase them."""
