// Gives Node a WebSocket that takes headers: older ones have none, and what newer ones have cannot be told why it was refused.
import { WebSocket } from 'ws';

globalThis.WebSocket = WebSocket;
