// Histograms of agreement: cosines between votes and capsule, of the chosen class upwards and of its rival downwards.

import { drawn, part } from "./dom.js";
import { agreements } from "./routing.js";

const BINS = 24;

export function histogram(found) {
  const bins = new Array(BINS).fill(0);
  let total = 0;
  for (const { cosine, weight } of found) {
    bins[Math.min(Math.floor(((cosine + 1) / 2) * BINS), BINS - 1)] += weight;
    total += weight;
  }
  return bins.map((weight) => (total > 0 ? weight / total : 0));
}

export function showAgreement(about, votes, step, chosen, rival) {
  const both = [chosen, rival].map((name) => (name === undefined ? [] : agreements(votes, step, name)));
  const bins = both.map(histogram);
  const most = Math.max(...bins.flat(), 1e-9);
  const bars = bins.flatMap((heights, which) => heights.map((height, at) => {
    const high = (46 * height) / most;
    return drawn("rect", { x: at * 10 + 1, width: 8, y: which ? 51 : 49 - high, height: high.toFixed(2), class: which ? "plain" : "routed" });
  }));
  part("agreement").replaceChildren(drawn("path", { d: "M0 50H240M120 0V100", class: "axes" }), ...bars);
  const mean = (found) => {
    const total = found.reduce((sum, { weight }) => sum + weight, 0);
    return (total > 0 ? found.reduce((sum, { cosine, weight }) => sum + cosine * weight, 0) / total : 0).toFixed(2);
  };
  const names = [chosen, rival].map((name) => about.classes[name]);
  part("agreement-text").textContent = rival === undefined ? `${names[0]}: mean ${mean(both[0])}.`
    : `Upwards: votes for ${names[0]}, mean ${mean(both[0])}. Downwards: votes for ${names[1]}, mean ${mean(both[1])}.`;
}
