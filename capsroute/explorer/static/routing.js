// Routing by agreement on the votes of one picture. The same few lines serve both forms of the explorer.

// Votes [i,j,d]: what child i says the pose of parent j is.
export class Votes {
  constructor(data, [children, parents, size]) {
    Object.assign(this, { data, children, parents, size });
  }

  // Sum over children of c[i,j] V[i,j,:]  -> [j,d]
  aggregate(coefficients) {
    const { data, children, parents, size } = this;
    const total = new Float64Array(parents * size);
    for (let i = 0, at = 0; i < children; i++) {
      for (let j = 0; j < parents; j++) {
        const c = coefficients[i * parents + j];
        for (let o = 0; o < size; o++) total[j * size + o] += c * data[at++];
      }
    }
    return total;
  }

  // V[i,j,:] . q[j,:]  -> [i,j]
  agreement(query) {
    const { data, children, parents, size } = this;
    const dots = new Float64Array(children * parents);
    for (let i = 0, at = 0; i < children; i++) {
      for (let j = 0; j < parents; j++) {
        let dot = 0;
        for (let o = 0; o < size; o++) dot += data[at++] * query[j * size + o];
        dots[i * parents + j] = dot;
      }
    }
    return dots;
  }

  length(i, j) {
    return norm(this.data, (i * this.parents + j) * this.size, this.size);
  }
}

export function norm(data, start, size) {
  let square = 0;
  for (let o = start; o < start + size; o++) square += data[o] * data[o];
  return Math.sqrt(square);
}

// Every row of d numbers becomes x |x| / (1 + |x|^2): its length a probability, its direction as it was.
export function squash(rows, size) {
  const squashed = new Float64Array(rows.length);
  for (let start = 0; start < rows.length; start += size) {
    const length = norm(rows, start, size);
    const factor = length / (1 + length * length);
    for (let o = start; o < start + size; o++) squashed[o] = rows[o] * factor;
  }
  return squashed;
}

// From logits [i,j] to coefficients [i,j], child by child over its parents.
const NORMALISE = {
  dynamic(row) {
    const most = Math.max(...row);
    const powers = row.map((logit) => Math.exp(logit - most));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  },
  max_min(row, { lower = 0, upper = 1 }) {
    const least = Math.min(...row);
    const most = Math.max(...row);
    // A child that prefers no parent gives all of them the most, as in the first iteration.
    return row.map((logit) => (most === least ? upper : lower + ((logit - least) / (most - least)) * (upper - lower)));
  },
};

// One record for each iteration: the coefficients [i,j] that it sums votes with, the poses [j,d] it makes of them, and
// their lengths [j]. `coefficients` given: one pass without any agreement.
export function route(votes, { name, iterations = 3, coefficients = null, ...options }) {
  const { children, parents, size } = votes;
  const first = name === "max_min" ? 1 : 1 / parents;
  let current = coefficients ?? new Float64Array(children * parents).fill(first);
  const query = new Float64Array(parents * size);
  const steps = [];
  for (let step = 0; step < (coefficients ? 1 : iterations); step++) {
    if (step > 0) current = normalised(votes.agreement(query), parents, NORMALISE[name], options);
    const poses = squash(votes.aggregate(current), size);
    steps.push(recorded(current, poses, parents, size));
    poses.forEach((number, at) => { query[at] += number; });
  }
  return steps;
}

function normalised(logits, parents, normalise, options) {
  const coefficients = new Float64Array(logits.length);
  for (let at = 0; at < logits.length; at += parents) {
    coefficients.set(normalise(Array.from(logits.subarray(at, at + parents)), options), at);
  }
  return coefficients;
}

export function recorded(coefficients, poses, parents, size) {
  return { coefficients, poses, lengths: Array.from({ length: parents }, (_, j) => norm(poses, j * size, size)) };
}

// What each child adds along the sum of parent j: c V.s / |s|^2. Shares add up to one. -> [i]
export function shares(votes, step, j) {
  const { children, parents, size } = votes;
  const total = votes.aggregate(step.coefficients).subarray(j * size, (j + 1) * size);
  const square = norm(total, 0, size) ** 2;
  return Float64Array.from({ length: children }, (_, i) => {
    const at = (i * parents + j) * size;
    let dot = 0;
    for (let o = 0; o < size; o++) dot += votes.data[at + o] * total[o];
    return square > 0 ? (step.coefficients[i * parents + j] * dot) / square : 0;
  });
}

// Cosines between the votes for parent j and its pose, and what each counts: coefficient times length. -> [{cosine, weight}]
export function agreements(votes, step, j) {
  const { children, parents, size } = votes;
  const pose = step.poses.subarray(j * size, (j + 1) * size);
  const length = norm(pose, 0, size);
  return Array.from({ length: children }, (_, i) => {
    const at = (i * parents + j) * size;
    const long = votes.length(i, j);
    let dot = 0;
    for (let o = 0; o < size; o++) dot += votes.data[at + o] * pose[o];
    const cosine = long > 0 && length > 0 ? dot / (long * length) : 0;
    return { cosine, weight: step.coefficients[i * parents + j] * long };
  });
}
