// Faults of the page for readers.
(() => {
    const light = (text) => {
        const [r, g, b] = text.match(/[\d.]+/g).map(Number).map((one) => one / 255)
            .map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = (one) => {
        for (; one; one = one.parentElement) {
            const color = getComputedStyle(one).backgroundColor;
            if (!/, 0\)$/.test(color) && color !== "transparent") return color;
        }
        return "rgb(255, 255, 255)";
    };
    const faults = [];
    for (const one of document.body.querySelectorAll("*")) {
        if (!one.checkVisibility() || one.closest("script, style, svg, option")) continue;
        const text = [...one.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data).join("").trim();
        if (!text) continue;
        const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => b - a);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) faults.push(text.slice(0, 40) + ": contrast " + contrast.toFixed(2));
        if (one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".wide, nav")) faults.push(text.slice(0, 40) + ": too wide");
    }
    if (document.documentElement.scrollWidth > innerWidth) faults.push("the page is wider than the window");
    return faults;
})();
