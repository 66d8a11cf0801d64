// Sends made-up sensors to a node by line protocol: node sensors.mjs PORT [SENSORS] [RATE]
import net from "node:net";

export function feed(port, { sensors = 1024, rate = 1, host = "127.0.0.1" } = {}) {
  const kinds = ["temperature", "humidity", "smoke", "door"];
  const socket = net.connect(port, host);
  let round = 0;
  let sent = 0;
  const timer = setInterval(() => {
    let lines = "";
    for (let at = 0; at < sensors; at += 1) {
      const kind = kinds[at % 4];
      const room = Math.floor(at / 48) + 1;
      const unit = Math.floor((at % 48) / 4) + 1;
      const wave = Math.sin((round + at * 7) / 40);
      const fire = room === 3 && round > 60 ? Math.min((round - 60) / 40, 1) * 180 : 0;
      const value = kind === "temperature" ? (21 + 2 * wave + fire).toFixed(2)
        : kind === "humidity" ? (45 + 10 * wave).toFixed(1)
          : kind === "smoke" ? (0.02 + 0.01 * wave + fire / 900).toFixed(4)
            : wave > 0;
      lines += `building,room=room-${room} ${kind}-${unit}=${value}\n`;
    }
    sent += sensors;
    socket.write(lines);
    round += 1;
  }, 1000 / rate);
  return {
    sent: () => sent,
    end() {
      clearInterval(timer);
      socket.destroy();
    },
    failed: new Promise((done) => { socket.on("error", done); }),
  };
}

if (process.argv[1]?.endsWith("sensors.mjs")) {
  const [port, sensors = "1024", rate = "1"] = process.argv.slice(2);
  const running = feed(Number(port), { sensors: Number(sensors), rate: Number(rate) });
  running.failed.then((error) => {
    console.error(`sensors: ${error.message}`);
    process.exit(1);
  });
}
