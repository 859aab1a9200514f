// The numbers of an array, by their places.
module @name@__array #(parameter COUNT = 1, BITS = 1, PLACE = 1) (
    input clk, input write, input [PLACE-1:0] write_at, input [BITS-1:0] value,
    input [PLACE-1:0] at, output reg [BITS-1:0] q
);
    (* no_rw_check *) reg [BITS-1:0] numbers [0:COUNT-1];
    always @(posedge clk) begin
        if (write) numbers[write_at] <= value;
        q <= numbers[at];
    end
endmodule

// The numbers of an array that are not 0, in the order in which they are written: place and number.
module @name@__list #(parameter COUNT = 1, BITS = 1, PLACE = 1, ZEROS = 0) (
    input clk, input clear, input write, input [PLACE-1:0] write_at, input [BITS-1:0] value,
    input [PLACE:0] at, output reg [PLACE+BITS-1:0] q, output reg [PLACE:0] count
);
    (* no_rw_check *) reg [PLACE+BITS-1:0] numbers [0:COUNT-1];
    always @(posedge clk) begin
        if (write && (ZEROS || value != 0)) begin
            numbers[count] <= {write_at, value};
            count <= count + 1;
        end
        if (clear) count <= 0;
        q <= numbers[at];
    end
endmodule
