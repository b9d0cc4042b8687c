"""What keeps a store small and safe, as the SDK and the command line ask for it."""
