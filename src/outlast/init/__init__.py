"""The verb ``init``: looks at raw text or pictures and writes a recipe that trains on them."""
