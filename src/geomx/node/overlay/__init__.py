"""An overlay at work: contributions are added, and updates passed on, by nodes of one tier for each other.

`conductor.py` is the part of the holders of slices: it has tables planned, and says which one is used. `relay.py` is
the part of the members. Each of them keeps its session with each holder, over which all that is small travels as ever;
only contributions to weights, and what answers them, take the ways of a table.

How it stays exact:

- An update says by which table it travels, and its receivers' next contribution to that slice. Nobody contributes to a
  slice before it has its last update, so all members of a turn act by one table, whenever they hear of it.
- Sums that come to a holder are nested in each other or have nobody in common: the greater takes the place of the
  less.
- Whenever something may have gone with a relay, the first holder says that its tables are `Void`: then everybody sends
  what is not answered to the holder itself. What is counted already is dropped, and who has missed an answer gets it
  again.
- Of a sum in which somebody was who does not count, the others send their own once more, `Apart`.
"""
