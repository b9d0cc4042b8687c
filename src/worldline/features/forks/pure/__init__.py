"""What a world does when it begins as a branch of another, or goes back to what it was."""
