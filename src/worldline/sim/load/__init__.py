"""What a simulated cluster has to do: programs, clients, scenarios, and what clients know of the outcome."""
