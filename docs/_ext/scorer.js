// The order of search results: Sphinx's, with decisions, lists and the code itself behind pages for users.
var Scorer = {
  score: ([docname, , , , score]) => {
    if (docname.startsWith("decisions/")) return score - 1000;
    return /^(conformance|_modules)\//.test(docname) || docname === "api" ? score - 500 : score;
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
