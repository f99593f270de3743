// What a search text finds: words of a span, key:value pairs, and durations, all of which must hold.
//   mlp backward      words anywhere in stream, kind, name or group
//   rank:3 stage:1 microbatch:7 layer:12 chunk:0 step:0      exactly that number
//   >5ms <20us        by duration
const KEYS = {rank: 1, stage: 1, microbatch: 1, mb: "microbatch", layer: 1, chunk: 1, step: 1};
const UNITS = {s: 1, ms: 1e-3, us: 1e-6, "µs": 1e-6, ns: 1e-9};

function parsedSearch(text) {
  const found = {words: [], numbers: [], longer: -Infinity, shorter: Infinity};
  for (const part of text.toLowerCase().split(/\s+/).filter(Boolean)) {
    const pair = part.match(/^([a-z]+)[:=](-?\d+)$/);
    const limit = part.match(/^([<>])(\d+(?:\.\d+)?)(s|ms|us|µs|ns)$/);
    if (pair && Object.hasOwn(KEYS, pair[1])) {
      found.numbers.push([KEYS[pair[1]] === 1 ? pair[1] : KEYS[pair[1]], Number(pair[2])]);
    } else if (limit) {
      const seconds = Number(limit[2]) * UNITS[limit[3]];
      if (limit[1] === ">") found.longer = seconds; else found.shorter = seconds;
    } else {
      found.words.push(part);
    }
  }
  return found;
}

// For each lane of a timeline a byte for each of its spans, 1 where it is found; null for an empty text.
function searched(timeline, text) {
  if (!text.trim()) return null;
  const wanted = parsedSearch(text);
  const all = new Map();
  const {what, words, secondsPerTick} = timeline;
  const said = what.kind.map((kind, at) => [what.stream[at], kind, what.name[at]].map((code) => words[code]).join(" ").toLowerCase());
  const ofWhat = wanted.numbers.filter(([name]) => name === "layer" || name === "chunk");
  const own = wanted.numbers.filter(([name]) => name === "microbatch" || name === "stage" || name === "step");
  const ranks = wanted.numbers.filter(([name]) => name === "rank");
  const inGroup = said.map((text) => wanted.words.filter((word) => !text.includes(word)));
  const possible = said.map((_, at) => ofWhat.every(([name, value]) => what[name][at] === value));
  for (const lane of timeline.lanes) {
    const found = new Uint8Array(lane.last - lane.first);
    all.set(lane, found);
    if (!ranks.every(([, value]) => lane.rank === value)) continue;
    for (let i = lane.first; i < lane.last; i++) {
      const kind = timeline.kindOf[i];
      if (!possible[kind]) continue;
      const seconds = timeline.length[i] * secondsPerTick;
      if (seconds <= wanted.longer || seconds >= wanted.shorter) continue;
      if (!own.every(([name, value]) => timeline[name][i] === value)) continue;
      if (inGroup[kind].length && !inGroup[kind].every((word) => timeline.groupOf(lane, i).toLowerCase().includes(word))) continue;
      found[i - lane.first] = 1;
    }
  }
  return all;
}
