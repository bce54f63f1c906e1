// Objects of an application: a cache of parsed documents with a list of those used last.
let seed = 1;
const random = () => (seed = (seed * 1103515245 + 12345) % 2147483648) / 2147483648;
const cache = new Map();
let sum = 0;
for (let at = 0; at < 1500000; at++) {
  const key = Math.floor(70000 * random() * random());
  let found = cache.get(key);
  if (found) {
    cache.delete(key);
    sum += found.parts[at % 8].length;
    found.hits++;
  } else {
    found = { key, hits: 0, parts: Array.from({ length: 8 }, (_, part) => `part ${part} of ${key}`) };
  }
  cache.set(key, found);
  if (cache.size > 55000) cache.delete(cache.keys().next().value);
}
console.log(cache.size, sum);
