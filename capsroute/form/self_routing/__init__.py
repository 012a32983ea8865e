"""Self-routing: children shared out by logits of their own, all of it in a few launches."""
