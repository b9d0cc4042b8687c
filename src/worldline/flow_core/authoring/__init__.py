"""Writing flow domains as classes: traced once into a document, and never run."""
