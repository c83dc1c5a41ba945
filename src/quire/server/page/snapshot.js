// Converts the reply of GET /live to the snapshot that the live view shows.

export function snapshotOf(state) {
  const { blocks, prefix_cache: prefix } = state;
  return {
    time: state.time,
    model: state.model,
    isAlive: state.is_alive,
    running: state.running,
    waiting: state.waiting,
    share: blocks.used / Math.max(1, blocks.total),
    blocks: {
      total: blocks.total,
      size: blocks.block_size,
      bytes: blocks.total * blocks.bytes_per_block,
      perCell: blocks.blocks_per_cell,
      cells: Uint8Array.from(atob(blocks.cells), (byte) => byte.charCodeAt(0)),
      // in the order of the cells' numbers; here a block is either used by one or shared
      counts: [blocks.free, blocks.cached, blocks.used - blocks.shared, blocks.shared],
    },
    steps: state.steps.map((step) => ({
      id: step.id,
      seconds: step.seconds,
      prefill: step.prefill_tokens,
      decode: step.decode_tokens,
      requests: step.requests,
    })),
    counters: {
      generation: state.generation_tokens,
      prompt: state.prompt_tokens,
      queries: prefix.queries,
      hits: prefix.hits,
      steps: state.num_steps,
      preemptions: state.preemptions,
    },
    misses: prefix.misses,
    ttft: state.ttft,
    itl: state.itl,
  };
}
