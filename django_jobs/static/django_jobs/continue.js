// The next step of an action over many rows. Where scripts are off, the form's button does the same.
document.addEventListener("DOMContentLoaded", () => document.getElementById("dj-continue")?.submit());
