// Changes of a state as buttons: valid alternatives, remedies, suggestions for new users.
function ways(label, changes, choose) {
  const row = document.createElement("span");
  row.className = "ways";
  row.append(`${label} `, ...changes.map(({words, settings}) => {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = words;
    button.addEventListener("click", () => choose(settings));
    return button;
  }));
  return row;
}

// Suggestions for new users, by the controls of the first state.
function firstIdeas(controls) {
  const value = (key) => controls.find((each) => each.key === key).value;
  const other = value("pipeline.schedule") === "1f1b" ? "gpipe" : "1f1b";
  const pipeline = value("parallel.pp") > 1 ? [{words: `the schedule ${other}`, settings: {"pipeline.schedule": other}}] : [];
  return [
    ...pipeline,
    {words: "a GPU 1.5 × slower", settings: {slow_gpu: [0, 1.5]}},
    {words: "half the network", settings: {"cluster.scale.network": 0.5}},
  ];
}
