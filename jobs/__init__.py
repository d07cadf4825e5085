"""What runs on Ray: one file a step, durable parts between them. Start reading at `schema.py`, then `audit.py`."""
