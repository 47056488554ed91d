"""The radix cache of SGLang: a tree of computed tokens, evicted by leaf.

A node has the tokens between two depths of the contexts below it. Inserting or matching a context
that ends or differs inside a node splits it. Running turns lock the nodes of their contexts; the
leaves that no turn locks are evicted whole, the least recently used one first. As in SGLang 0.5.23
(`unified_radix_cache`) with pages of one token. Depths and sizes are in tokens.
"""

from __future__ import annotations

import heapq

from servers.sim import Path


class TurnTokens:
    """The tokens of a turn's prompt and answer, known by their blocks in the tree of contents.
    Those of a partly filled last block are equal to no others."""

    __slots__ = ("_block", "_path")

    def __init__(self, path: Path, block_tokens: int) -> None:
        self._path, self._block = path, block_tokens

    def at(self, token: int) -> object:
        """Return what identifies a token and all tokens before it."""
        depth = token // self._block
        for segment, exit_depth in self._path:
            if depth < exit_depth:
                return segment, depth
        return self

    def common(self, other: TurnTokens, most: int) -> int:
        """Return how many tokens two contexts begin with in common, at most `most`."""
        if other is self:
            return most
        depth = index = their_index = 0
        while index < len(self._path) and their_index < len(other._path):
            segment, exit_depth = self._path[index]
            their_segment, their_exit = other._path[their_index]
            if exit_depth <= depth:
                index += 1
            elif their_exit <= depth:
                their_index += 1
            elif segment is their_segment:
                depth = min(exit_depth, their_exit)
            else:
                break
        return min(depth * self._block, most)


class Node:
    """The tokens from `parent.end` to `end` of the contexts below it."""

    __slots__ = ("children", "contents", "end", "locks", "parent", "used")

    def __init__(self, parent: Node | None, contents: TurnTokens, end: int) -> None:
        self.parent = parent
        self.contents = contents
        """A context that has these tokens."""
        self.end = end
        self.children: dict[object, Node] = {}
        """By their first token."""
        self.locks = 0
        self.used = 0
        """When it was used last, by the tree's count of uses."""

    @property
    def start(self) -> int:
        return 0 if self.parent is None else self.parent.end

    @property
    def is_evictable(self) -> bool:
        return not (self.locks or self.children or self.parent is None)


class RadixTree:
    def __init__(self) -> None:
        self.root = Node(None, TurnTokens((), 1), 0)
        self.evictable = 0
        """Tokens of the nodes that no turn locks."""
        self._leaves: set[Node] = set()
        """The nodes that are evictable."""
        self._uses = 0

    def match(self, contents: TurnTokens, tokens: int) -> Node:
        """Return the node in which the longest cached prefix within the first `tokens` tokens
        ends."""
        node, passed = self.root, []
        while (child := self._child(node, contents, tokens)) is not None:
            node = self._part(child, contents, tokens)
            passed.append(node)
        for each in passed:
            self._use(each)
        return node

    def insert(self, contents: TurnTokens, tokens: int) -> tuple[Node, int]:
        """Add the first `tokens` tokens; return their last node, and how many were cached."""
        node = self.root
        while (child := self._child(node, contents, tokens)) is not None:
            self._use(child)
            node = self._part(child, contents, tokens)
        cached = node.end
        if cached < tokens:
            parent, node = node, Node(node, contents, tokens)
            parent.children[contents.at(cached)] = node
            self.evictable += tokens - cached
            self._use(node)
            self._update(parent)
            self._update(node)
        return node, cached

    def lock(self, node: Node) -> None:
        """Lock the context that ends with `node`."""
        while node.parent is not None:
            if not node.locks:
                self.evictable -= node.end - node.start
            node.locks += 1
            self._leaves.discard(node)
            node = node.parent

    def unlock(self, node: Node) -> None:
        while node.parent is not None:
            node.locks -= 1
            if not node.locks:
                self.evictable += node.end - node.start
                self._update(node)
            node = node.parent

    def evict(self, tokens: int) -> int:
        """Evict leaves until they have at least `tokens` tokens, or none is left; return how many
        they had."""
        evicted = 0
        heap = [(leaf.used, leaf) for leaf in self._leaves]
        heapq.heapify(heap)
        while evicted < tokens and heap:
            _, leaf = heapq.heappop(heap)
            parent = leaf.parent
            if parent is None:
                raise RuntimeError("the root of the radix tree is no leaf")
            evicted += leaf.end - parent.end
            del parent.children[leaf.contents.at(parent.end)]
            self._leaves.remove(leaf)
            self._update(parent)
            if parent.is_evictable:
                heapq.heappush(heap, (parent.used, parent))
        self.evictable -= evicted
        return evicted

    def _child(self, node: Node, contents: TurnTokens, tokens: int) -> Node | None:
        return node.children.get(contents.at(node.end)) if node.end < tokens else None

    def _part(self, node: Node, contents: TurnTokens, tokens: int) -> Node:
        """Return the node with the tokens of `node` that the context has, split off if it lacks
        some."""
        end = min(node.end, contents.common(node.contents, tokens))
        if end == node.end or node.parent is None:
            return node
        upper = Node(node.parent, node.contents, end)
        upper.locks = node.locks
        upper.children[node.contents.at(end)] = node
        node.parent.children[node.contents.at(node.start)] = upper
        node.parent = upper
        self._use(upper)
        self._use(node)
        return upper

    def _use(self, node: Node) -> None:
        self._uses += 1
        node.used = self._uses

    def _update(self, node: Node) -> None:
        if node.is_evictable:
            self._leaves.add(node)
        else:
            self._leaves.discard(node)
