"""Commands about flow domains: as documents and classes, and in worlds."""
