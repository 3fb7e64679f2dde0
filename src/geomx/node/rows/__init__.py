"""Row servers: nodes beside the shards that answer requests like those, and come and go while the run lasts.

`row_server.py` is the node, `row_servers.py` a shard's part: a row server dials all shards, and whatever it is asked,
and answers, goes through one of them, so that nobody else has to know where it is. What is asked is the business of a
`Service` (`geomx.node.requests`), here of `geomx.tables`; so is what a row server says to come or to go.
"""
