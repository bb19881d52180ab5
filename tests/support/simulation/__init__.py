"""The real storage and checkpoint code in a world that a seed decides: time, threads, deaths, the store's
answers (docs/design/commit.md).
"""
