"""When does routing help? One script an experiment; docs/when_routing_helps.md says what they found."""
