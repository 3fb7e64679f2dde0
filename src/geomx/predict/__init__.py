"""How long a round will take, and what it will send: predictions, before anything runs. See `docs/plan.md`."""
