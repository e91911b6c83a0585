"use strict";
// The tables of the catalogs: filters by text, source, purpose, action kind and size, and columns that sort. It loads nothing.
(() => {
  const UNITS = { B: 1, kB: 1e3, MB: 1e6, GB: 1e9, TB: 1e12 };
  const SIZES = [["up to 100 MB", 0, 1e8], ["100 MB to 1 GB", 1e8, 1e9], ["1 to 10 GB", 1e9, 1e10], ["above 10 GB", 1e10, Infinity]];

  /** The number in a cell, as in "~ 1,000,000" and "152.8 MB"; else its text. */
  function value(cell) {
    const text = cell.textContent.trim();
    const match = /^~?\s*([\d.,]+)\s*([kMGT]?B)?$/.exec(text);
    return match ? Number(match[1].replaceAll(",", "")) * (UNITS[match[2]] ?? 1) : text.toLowerCase();
  }

  function compare(first, second) {
    if (first === "" || second === "") return (first === "") - (second === ""); // unknown values come last
    if (typeof first === "number" && typeof second === "number") return first - second;
    return String(first).localeCompare(String(second), "en", { numeric: true });
  }

  function element(tag, attributes, ...children) {
    const made = Object.assign(document.createElement(tag), attributes);
    made.append(...children);
    return made;
  }

  function choice(label, names, changed) {
    const options = [["", `any ${label}`], ...names.map((name) => [name, name])].map(([at, text]) => element("option", { value: at }, text));
    const select = element("select", { ariaLabel: label, onchange: changed }, ...options);
    return names.length > 1 ? select : null;
  }

  function equip(box) {
    const table = box.querySelector("table"), body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
    const at = Object.fromEntries(heads.map((head, column) => [head.textContent.trim(), column]));
    const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase(), values: [...row.cells].map(value) }));
    const source = (one) => ("sources" in box.dataset ? one.values[at.dataset].split("/")[0] : "");
    const action = (one) => String(one.values[at.action] ?? "").split("[")[0];
    const purposes = (one) => String(one.values[at["used for"]] ?? "").split(", ");
    const named = (of) => [...new Set(rows.flatMap(of))].filter(Boolean).sort();
    const count = element("output", { className: "catalog-count" });

    const show = () => {
      const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
      const [, low, high] = SIZES.find(([name]) => name === sizes?.value) ?? ["", -Infinity, Infinity];
      let shown = 0;
      for (const one of rows) {
        const bytes = one.values[at.download];
        const kept = words.every((word) => one.text.includes(word)) && (!sources?.value || source(one) === sources.value) &&
          (!uses?.value || purposes(one).includes(uses.value)) &&
          (!actions?.value || action(one) === actions.value) && (!sizes?.value || (bytes !== "" && bytes > low && bytes <= high));
        one.row.hidden = !kept;
        shown += kept;
      }
      count.textContent = shown === rows.length ? `${rows.length} datasets` : `${shown} of ${rows.length} datasets`;
    };
    const search = element("input", { type: "search", placeholder: "Filter: words of any column", ariaLabel: "Filter", oninput: show });
    const sources = choice("source", named(source), show), actions = choice("action", named(action), show);
    const uses = choice("purpose", named(purposes), show);
    const sizes = at.download === undefined ? null : choice("size", SIZES.map(([name]) => name), show);

    heads.forEach((head, column) => {
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "ascending", sign = down ? -1 : 1;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const unknown = (one) => one.values[column] === "";
        rows.sort((one, other) => (unknown(one) || unknown(other) ? 1 : sign) * compare(one.values[column], other.values[column]));
        body.append(...rows.map((one) => one.row));
      };
      head.replaceChildren(element("button", { type: "button", onclick: sort }, ...head.childNodes));
    });
    box.prepend(element("div", { className: "catalog-tools" }, ...[search, sources, uses, actions, sizes].filter(Boolean), count));
    show();
  }

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll(".catalog").forEach(equip));
})();
