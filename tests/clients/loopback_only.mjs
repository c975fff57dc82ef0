// Lets a Node program connect to this machine only: the tests' programs preload it. Who tries to go elsewhere fails, and the
// line that it leaves on the standard error stream fails the test, too.
import net from 'node:net';

const HERE = new Set(['localhost', '127.0.0.1', '::1']);
const { connect } = net.Socket.prototype;

net.Socket.prototype.connect = function (...args) {
  // net.connect() hands over its arguments as [options, callback]; others call with options, or with a port and a host.
  const first = Array.isArray(args[0]) ? args[0][0] : args[0];
  const named = typeof first === 'object' ? first : { port: first, host: typeof args[1] === 'string' ? args[1] : undefined };
  const host = named.path ? 'localhost' : (named.host ?? 'localhost');
  if (HERE.has(host)) return connect.apply(this, args);
  console.error(`loopback only: ${host}`);
  return this.destroy(new Error(`loopback only: ${host}`));
};
