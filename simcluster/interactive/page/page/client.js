// The connection to the server: what is asked has a number, and an answer to an older number than was shown last is
// dropped.  A connection that is lost is made again, and what was asked last is asked again.
class Client {
  constructor(heard, state) {
    Object.assign(this, {heard, state, number: 0, last: null, socket: null, waits: 250});
    this.open();
  }

  open() {
    const socket = new WebSocket(`ws://${location.host}/live`);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.onopen = () => { this.waits = 250; this.state("open"); if (this.last) socket.send(JSON.stringify(this.last)); };
    socket.onmessage = (event) => { const {ask, of} = answerOf(event.data); this.heard(ask, of); };
    socket.onclose = () => {
      this.state("lost");
      setTimeout(() => this.open(), this.waits);
      this.waits = Math.min(8000, 2 * this.waits);
    };
  }

  send(message) {
    const whole = {ask: ++this.number, ...message};
    if (message.live && !("save" in message)) this.last = whole;
    if (this.socket.readyState === WebSocket.OPEN) this.socket.send(JSON.stringify(whole));
    return this.number;
  }
}

// An answer: JSON; where it comes with columns of numbers, these stand behind the end of its line.
function answerOf(data) {
  if (typeof data === "string") return JSON.parse(data);
  const bytes = new Uint8Array(data);
  const end = bytes.indexOf(10);
  const answer = JSON.parse(new TextDecoder().decode(bytes.subarray(0, end)));
  answer.of.columns = Object.assign(bytes.subarray(end + 1), {inPlace: true});
  return answer;
}

// A state as the part of an address behind #, and back; null for an address that is none.
function linkOf(state, pinned) {
  const parts = [["scenario", state.base], ...Object.entries(state.settings).map(([key, value]) => [key, JSON.stringify(value)])];
  const text = parts.map(([key, value]) => `${key}=${encodeURIComponent(value).replace(/%5B|%5D|%2C/g, decodeURIComponent)}`).join("&");
  return pinned ? `${text}&pinned=${encodeURIComponent(linkOf(pinned, null))}` : text;
}

function stateOf(text) {
  const told = new URLSearchParams(text.replace(/^#/, ""));
  const base = told.get("scenario");
  if (!base) return null;
  const settings = {};
  for (const [key, value] of told) {
    if (key === "scenario" || key === "pinned") continue;
    try { settings[key] = JSON.parse(value); } catch { settings[key] = value; }
  }
  const pinned = told.get("pinned") ? stateOf(told.get("pinned")) : null;
  return {live: {base, settings}, pinned: pinned && pinned.live};
}
