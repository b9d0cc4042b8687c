"""The timer worker: it puts what is due into inboxes."""
