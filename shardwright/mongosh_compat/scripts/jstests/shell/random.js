"use strict";
// Pseudorandom numbers, reproducible by their seed.
const MODULUS = 2 ** 32;

let state = 0;

const Random = {
  // Returns the seed.
  srand(seed) {
    state = Number(seed) >>> 0;
    return seed;
  },

  setRandomSeed(seed = Date.now()) {
    host.write(`setting random seed: ${seed}\n`);
    return Random.srand(seed);
  },

  setRandomFixtureSeed() {
    return Random.srand(globalThis.TestData?.seed ?? 0);
  },

  isInitialized: () => true,

  // A number in [0, 1): mulberry32.
  rand() {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / MODULUS;
  },

  randInt: (from, to) =>
    to === undefined ? Math.floor(Random.rand() * from) : Math.floor(from + Random.rand() * (to - from)),

  randNormal: (mean, deviation) =>
    mean + deviation * Math.sqrt(-2 * Math.log(1 - Random.rand())) * Math.cos(2 * Math.PI * Random.rand()),

  genExp: (mean) => -Math.log(1 - Random.rand()) * mean,
  genNormal: (mean, deviation) => Random.randNormal(mean, deviation),
};

module.exports = { Random };
