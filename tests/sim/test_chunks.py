"""Chunked local attention: its blocks, prefix hits and step times.

`tests/real/plugin/differential.py` compares every decision with vLLM's scheduler, and
`test_windows.py` strides with single steps.
"""

from __future__ import annotations

from servers.profiles import WindowTimes
from servers.profiles.kv_memory import KvMemory
from servers.sim import Segment
from servers.sim.chunks import ChunkKV
from tests.sim.test_windows import chain, turn
from tests.sim.worlds import BLOCK


def test_blocks_are_freed_when_the_next_token_begins_a_chunk() -> None:
    # The tokens of the first chunk of 64 are needed by its last token, 63, which attends to them
    # all. Token 64 attends to itself only.
    kv = ChunkKV(100, (-64, None), BLOCK)
    assert [kv.passed(tokens) for tokens in (0, 63, 64, 127, 128)] == [0, 0, 4, 4, 8]
    assert [kv.next_leave(tokens) for tokens in (0, 64, 65, 128)] == [64, 64, 128, 128]


def test_a_turn_keeps_the_blocks_of_its_last_chunk() -> None:
    kv = ChunkKV(100, (-64, -64, None), BLOCK)
    owner = turn(kv, chain(20), prompt=160, output=40)
    # 200 tokens are 13 blocks of full attention. The last chunk begins at token 192, block 12.
    assert owner.blocks == 13 + 2 * 1
    assert kv.used == owner.blocks


def test_the_next_turn_hits_the_answer_too() -> None:
    kv = ChunkKV(100, (-64, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=160, output=16))
    # 176 tokens are 11 full blocks, the last three of them in the chunk from block 8.
    assert kv.find(kv.owner(path), 19) == (11, 11 + 3)


def test_a_hit_needs_the_blocks_of_its_last_chunk_only() -> None:
    kv = ChunkKV(24, (-64, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=128))
    # The 8 blocks of both chunks are evicted before those of full attention. A hit that ends where
    # a chunk ends needs none of them, and one that ends later in a chunk begins with that chunk.
    kv.allocate(kv.owner(chain(1)), kv._blank + 8)
    assert kv.find(kv.owner(path), 19).depth == 8
    assert kv.find(kv.owner(path), 7).depth == 4


def test_a_hit_ends_before_the_first_missing_block_of_its_chunk() -> None:
    kv = ChunkKV(100, (-64, None), BLOCK)
    path = chain(20)
    kv.release(turn(kv, path, prompt=112))
    # The chunk from block 4 has blocks 4 to 6, which are evicted from the last on.
    taken = kv.owner(chain(1))
    kv.allocate(taken, kv._blank)
    depths = []
    for _ in range(4):
        kv.allocate(taken, 1)
        depths.append(kv.find(kv.owner(path), 19).depth)
    # Blocks 3 to 0 of the first chunk were freed first, when the second one began.
    assert depths == [7, 7, 7, 7]
    kv.allocate(taken, 1)
    assert kv.find(kv.owner(path), 19).depth == 6


def test_copies_of_the_same_block_are_kept_as_in_vllm() -> None:
    kv = ChunkKV(100, (-64, None), BLOCK)
    root = Segment(0)
    kv.release(turn(kv, ((root, 12),), prompt=192))
    cached = kv.blocks - kv._blank
    # The prompt's last token is computed again, so that the hit ends before block 11. The block is
    # full attention's and the chunk's.
    kv.release(turn(kv, ((root, 12),), prompt=192))
    assert kv.blocks - kv._blank == cached + 2


def test_a_turn_needs_a_chunk_and_a_step_beside_its_full_attention() -> None:
    # A step of 40 tokens that begins at the last token of a chunk of 64: 104 tokens, 7 blocks.
    memory = KvMemory(720, BLOCK, kv_groups=(-64, None))
    assert memory.turn_blocks(1000, 40) == 63 + 7
    # vLLM counts two steps in flight: 63 blocks of 1,000 tokens, and 9 for 64 + 2 × 40.
    assert memory.kv_tokens(40, 1000) == 10_000


def test_a_token_attends_to_those_before_it_in_its_chunk() -> None:
    times = WindowTimes(64, context_ps=3, pair_ps=5, chunked=True)
    assert [times.read(context) for context in (1, 64, 65, 129)] == [1, 64, 1, 1]
    # Tokens 62 and 63 end the first chunk, and tokens 64 to 66 begin the next one.
    assert times.pairs(62, 5) == 63 + 64 + 1 + 2 + 3
    assert times.step_ps([(5, 62)], [70]) == 6 * 3 + 133 * 5
