"""Token files as trainers read them: Megatron, NumPy, Arrow and Parquet, MosaicML MDS and LitData.

A partition becomes one or more shards, with a list of places (`places`): for every document, the shard and the offset
of its tokens.
"""
