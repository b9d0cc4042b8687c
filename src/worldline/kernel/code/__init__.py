"""Programs as code: their hash, their source, what they wait for."""
