// Draws the heat map: a row for each process, a column for each span of time.
(() => {
  const canvas = document.getElementById("heat");
  if (!canvas) return;
  const rows = canvas.dataset.rows.split(" ");
  canvas.width = rows[0].length;
  canvas.height = rows.length;
  canvas.style.height = Math.min(400, Math.max(40, 12 * rows.length)) + "px";
  const context = canvas.getContext("2d");
  rows.forEach((row, y) => {
    for (let x = 0; x < row.length; x++) {
      const level = row.charCodeAt(x) - 97;
      if (level === 0) continue;
      context.fillStyle = `rgb(42 120 200 / ${level / 15})`;
      context.fillRect(x, y, 1, 1);
    }
  });
})();
