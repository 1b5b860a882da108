// Where the items of the graph stand: in layers, each item behind all that it reads.  Layers are columns from left to
// right or, `turned`, rows from top to bottom; a layer that is longer than its room has several lanes.

export const MARGIN = 16;
const SWEEPS = 8;

// Returns the layers, and the lines between their places.  An item stands as near to its readers as what it reads
// allows.  A line that crosses a layer has a thin place of its own there.  A few sweeps of means order each layer.
export function layered(items) {
  const known = new Map(items.map((item) => [item.name, item]));
  const reads = (name) => known.get(name).reads.filter((each) => known.has(each));
  const readers = new Map(items.map((item) => [item.name, []]));
  for (const item of items) for (const each of reads(item.name)) readers.get(each).push(item.name);
  const depth = new Map();
  const deep = (name, under) => {
    if (depth.has(name)) return depth.get(name);
    if (under.has(name)) return 0;
    under.add(name);
    const found = Math.max(-1, ...reads(name).map((each) => deep(each, under))) + 1;
    under.delete(name);
    depth.set(name, found);
    return found;
  };
  for (const item of items) deep(item.name, new Set());
  for (const item of [...items].sort((one, other) => depth.get(other.name) - depth.get(one.name))) {
    const after = readers.get(item.name).map((each) => depth.get(each));
    if (after.length) depth.set(item.name, Math.max(depth.get(item.name), Math.min(...after) - 1));
  }
  const layers = [];
  const put = (layer, spot) => { (layers[layer] ||= []).push(spot); return Object.assign(spot, { layer, before: [], after: [] }); };
  const spots = new Map(items.map((item) => [item.name, put(depth.get(item.name), { item })]));
  const lines = [];
  for (const item of items) {
    for (const each of reads(item.name)) {
      const way = [spots.get(each)];
      for (let layer = depth.get(each) + 1; layer < depth.get(item.name); layer++) way.push(put(layer, {}));
      way.push(spots.get(item.name));
      way.slice(1).forEach((spot, at) => { spot.before.push(way[at]); way[at].after.push(spot); });
      lines.push({ from: each, to: item.name, way });
    }
  }
  const number = (layer) => layer.forEach((spot, at) => { spot.rank = at - (layer.length - 1) / 2; });
  layers.forEach(number);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    for (const layer of sweep % 2 ? [...layers].reverse() : layers) {
      for (const spot of layer) {
        const near = sweep % 2 ? spot.after : spot.before;
        spot.mean = near.length ? near.reduce((sum, each) => sum + each.rank, 0) / near.length : spot.rank;
      }
      layer.sort((one, other) => one.mean - other.mean);
      number(layer);
    }
  }
  return { layers, lines };
}

// Gives each spot its place `[along, across]` and its size.  `how.size(spot)`: that of an item; `how.room`: across, for
// one lane; `how.gap`: between items; `how.step`: between layers.  Returns how long and how wide all is, and whether a layer
// has several lanes.
export function arranged(layers, how) {
  let [along, widest, folded] = [MARGIN, 0, false];
  for (const layer of layers) {
    const lanes = [];
    for (const spot of layer) {
      spot.size = spot.item ? how.size(spot) : [0, how.thin];
      let lane = lanes[lanes.length - 1];
      if (!lane || lane.next + spot.size[1] > how.room) lanes.push((lane = { spots: [], wide: 0, next: 0, long: 0 }));
      spot.across = lane.next;
      lane.wide = spot.across + spot.size[1];
      lane.next = lane.wide + (spot.item ? how.gap : how.thin);
      lane.long = Math.max(lane.long, spot.size[0]);
      lane.spots.push(spot);
    }
    const begin = along;
    for (const lane of lanes) {
      for (const spot of lane.spots) spot.along = along;
      along += lane.long + how.gap;
    }
    along -= how.gap;
    folded ||= lanes.length > 1;
    layer.wide = Math.max(...lanes.map((lane) => lane.wide));
    widest = Math.max(widest, layer.wide);
    for (const spot of layer) if (!spot.item) [spot.along, spot.size[0]] = [begin, along - begin];
    along += how.step;
  }
  for (const layer of layers) for (const spot of layer) spot.across += MARGIN + (widest - layer.wide) / 2;
  return [along - how.step + MARGIN, widest + 2 * MARGIN, folded];
}

// Returns the line through the middles of places, as a path.
export function drawn(way, turned) {
  const point = (along, across) => (turned ? `${across} ${along}` : `${along} ${across}`);
  const middle = (spot) => spot.across + spot.size[1] / 2;
  let path = "";
  way.slice(1).forEach((spot, at) => {
    const [from, begin, end] = [way[at], way[at].along + way[at].size[0], spot.along];
    const bend = (end - begin) / 2;
    path += `${at ? "L" : "M"}${point(begin, middle(from))}C${point(begin + bend, middle(from))} ${point(end - bend, middle(spot))} ${point(end, middle(spot))}`;
  });
  return path;
}
