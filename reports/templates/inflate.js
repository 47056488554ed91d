"use strict";
// Returns the text that deflate (RFC 1951) compressed to `data`, from the byte `start` on. The browser's own
// DecompressionStream would answer only after the page has loaded, so that a picture of it could lack the figures.
function inflate(data, start) {
  let at = start * 8, out = new Uint8Array(4 * data.length + 1024), size = 0;
  const bit = () => (data[at >> 3] >> (at++ & 7)) & 1;
  const bits = (count) => { let value = 0; for (let k = 0; k < count; k++) value |= bit() << k; return value; };

  // A code by the lengths of its symbols: how many have each length, and the symbols in the order of their codes.
  function codeOf(lengths) {
    const counts = new Uint16Array(16), next = new Uint16Array(16), symbols = new Uint16Array(lengths.length);
    for (const length of lengths) if (length) counts[length]++;
    for (let length = 1; length < 15; length++) next[length + 1] = next[length] + counts[length];
    lengths.forEach((length, symbol) => { if (length) symbols[next[length]++] = symbol; });
    return { counts, symbols };
  }
  function symbolOf({ counts, symbols }) {
    let value = 0, first = 0, index = 0;
    for (let length = 1; length < 16; length++) {
      value = (value << 1) | bit();
      first <<= 1;
      if (value - first < counts[length]) return symbols[index + value - first];
      index += counts[length];
      first += counts[length];
    }
    throw new Error("the figures of this page are damaged");
  }
  function put(byte) {
    if (size === out.length) {
      const larger = new Uint8Array(2 * out.length);
      larger.set(out);
      out = larger;
    }
    out[size++] = byte;
  }

  const fixed = () => [codeOf(Array.from({ length: 288 }, (_, k) => (k < 144 ? 8 : k < 256 ? 9 : k < 280 ? 7 : 8))), codeOf(Array(30).fill(5))];
  function dynamic() {
    const literals = bits(5) + 257, distances = bits(5) + 1, count = bits(4) + 4, own = Array(19).fill(0);
    [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15].slice(0, count).forEach((k) => { own[k] = bits(3); });
    const code = codeOf(own), lengths = [];
    while (lengths.length < literals + distances) {
      const symbol = symbolOf(code);
      if (symbol < 16) lengths.push(symbol);
      else {
        const value = symbol === 16 ? lengths[lengths.length - 1] : 0;
        for (let n = symbol === 16 ? 3 + bits(2) : symbol === 17 ? 3 + bits(3) : 11 + bits(7); n > 0; n--) lengths.push(value);
      }
    }
    return [codeOf(lengths.slice(0, literals)), codeOf(lengths.slice(literals))];
  }
  function copyOf(symbol, distances) {
    const k = symbol - 257, more = k < 8 || k === 28 ? 0 : (k >> 2) - 1;
    const length = k === 28 ? 258 : k < 8 ? k + 3 : 3 + ((4 + (k & 3)) << more) + bits(more);
    const d = symbolOf(distances), further = d < 4 ? 0 : (d >> 1) - 1;
    const distance = d < 4 ? d + 1 : 1 + ((2 + (d & 1)) << further) + bits(further);
    for (let n = 0; n < length; n++) put(out[size - distance]);
  }

  for (let last = 0; !last;) {
    last = bit();
    const kind = bits(2);
    if (kind === 0) {
      at = (at + 7) & ~7;
      const length = bits(16);
      at += 16;
      for (let n = 0; n < length; n++) put(bits(8));
      continue;
    }
    const [literals, distances] = kind === 1 ? fixed() : dynamic();
    for (let symbol = symbolOf(literals); symbol !== 256; symbol = symbolOf(literals)) {
      if (symbol < 256) put(symbol);
      else copyOf(symbol, distances);
    }
  }
  return new TextDecoder().decode(out.subarray(0, size));
}
