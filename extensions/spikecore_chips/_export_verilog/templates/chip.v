// The core with few pins, for place and route: inputs are shifted in, outputs are folded.
module chip(input clk, input bit_in, input load, output reg bit_out);
    localparam BITS = 3 + @place_in@ + @bits_in@ + @place_out@;
    reg [BITS-1:0] shifted, held;
    wire done;
    wire [@bits_out@-1:0] value;
    reg [@bits_out@:0] seen;
    @name@ core(
        .clk(clk), .reset(held[0]), .in_write(held[1]), .step(held[2]), .in_at(held[3 +: @place_in@]),
        .in_value(held[3+@place_in@ +: @bits_in@]), .out_at(held[3+@place_in@+@bits_in@ +: @place_out@]),
        .done(done), .out_value(value));
    always @(posedge clk) begin
        shifted <= {shifted, bit_in};
        if (load) held <= shifted;
        seen <= {done, value};
        bit_out <= ^seen;
    end
endmodule
