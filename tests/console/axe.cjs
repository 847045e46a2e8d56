// Runs axe-core on pages. Standard input: {NAME: HTML, …} as JSON; output: the violations by page.
// Colours are not checked: there is no layout here.
const axe = require("axe-core");
const { JSDOM } = require("jsdom");

async function violations(html) {
  const { window } = new JSDOM(html, { runScripts: "outside-only", pretendToBeVisual: true });
  window.eval(axe.source);
  const found = await window.axe.run(window.document, { rules: { "color-contrast": { enabled: false } } });
  window.close();
  return found.violations.map(({ id, impact, nodes }) => ({ id, impact, where: nodes.map((node) => node.html).slice(0, 3) }));
}

(async () => {
  const pages = JSON.parse(require("fs").readFileSync(0, "utf8"));
  const found = {};
  for (const [name, html] of Object.entries(pages)) {
    found[name] = await violations(html);
  }
  process.stdout.write(JSON.stringify(found));
})();
