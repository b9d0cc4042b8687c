"""Moving old frames into segments, and dropping states that nothing needs."""
